"""Machine translation with the Transformer of "Attention Is All You Need", from raw text to a comparable score."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Config", "Translation", "Translator", "__version__", "load_config"]

if TYPE_CHECKING:
    from transformer_mt.config import Config
    from transformer_mt.config.file import load_config
    from transformer_mt.decode.translator import Translation, Translator

_HOMES = {
    "Config": "config",
    "load_config": "config.file",
    "Translation": "decode.translator",
    "Translator": "decode.translator",
}


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first asked for, so that `import transformer_mt` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'transformer_mt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"transformer_mt.{_HOMES[name]}"), name)
