"""The README.md of an exported folder: the model's own card, with how to use what is in this folder."""

from pathlib import Path

USE = "## Use"
ASKED = "A line begins with the language that is wanted, as in `{example}`."


def write_readme(origin: Path, folder: Path, use: str) -> None:
    """Writes the card with its section on use replaced by `use`, Markdown that begins with that heading.

    origin: the model folder that was exported. A checkpoint has no card: then `use` stands alone.
    """
    card = origin / "README.md"
    text = card.read_text("utf-8") if card.is_file() else f"# {origin.resolve().name}\n\n{USE}\n"
    before, _, after = text.partition(f"{USE}\n")
    _, mark, rest = after.partition("\n## ")
    (folder / "README.md").write_text(f"{before.rstrip()}\n\n{use.strip()}\n{mark and mark + rest}", "utf-8")
