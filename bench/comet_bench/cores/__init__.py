"""`comet bench cores`: the same load with one core and with two, at one broker and at two."""
