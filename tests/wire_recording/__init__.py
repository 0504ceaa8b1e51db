"""Records what servers send to clients in every test, and compares two such recordings.

`plugin` records, `normal_form` removes what differs between two runs of one tree, `recordings` reads and
writes the files, `comparison` finds the tests in which two trees differ.
"""
