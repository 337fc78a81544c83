"""`python -m clarion` is `clarion`, for where scripts of a virtual environment are not on the path."""

from clarion.cli.main import main

if __name__ == "__main__":
    main()
