from pycoll.cli import main

main()
