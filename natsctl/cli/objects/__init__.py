"""Commands that read and write the objects of a bucket."""
