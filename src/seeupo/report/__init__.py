"""The HTML report of one or more runs: verdict, curves, and the credit of every trajectory."""
