"""One module per API, named by its key; each opens with the versions it speaks and what it leaves out."""
