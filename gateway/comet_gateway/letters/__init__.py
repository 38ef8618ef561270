"""Dead letters: where they are, what became of them, and back to work with them.

letter     one letter, and the notes that say what became of it          (pure)
shelf      what is known of the letters of one topic, read as it grows
shelves    which topics hold dead letters, and a shelf for each
choosing   which letters are meant                                       (pure)
settling   redriving and discarding them, one after the other, at a bounded rate
"""
