from forebay.platform.cli import main

main()
