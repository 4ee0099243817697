"""The deliberative reasoner: a vision-language-action model of the public Alpamayo layout."""
