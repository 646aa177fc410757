"""Tables of users: the way of a row from a file to the input of a model."""
