from seeupo.cli import main

main()
