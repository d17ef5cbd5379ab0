"""`python -m sia` is the `sia` command."""

from sia.console.main import main

if __name__ == "__main__":
    main()
