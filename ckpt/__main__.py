"""`python -m ckpt`: the same as the command `ckpt`."""

from ckpt.cli import main

if __name__ == "__main__":
    main()
