from penstock_spark.cli import main

main()
