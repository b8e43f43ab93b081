"""`python -m transformer_mt`: what torchrun starts."""

from transformer_mt.cli import main

if __name__ == "__main__":
    main()
