"""`python -m app COMMAND` is `headrace COMMAND`."""

from app.main import main

main()
