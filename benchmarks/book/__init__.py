"""The results book: claims of the source documents, the runs that test them, and verdicts."""
