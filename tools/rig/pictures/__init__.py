"""The pictures of the documents, each drawn from a source that is in the repository: `make pictures`."""
