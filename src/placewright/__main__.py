"""`python -m placewright`: the command line."""

from placewright.cli import main

if __name__ == "__main__":
    main()
