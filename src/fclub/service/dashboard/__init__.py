"""The pages that a server shows of itself: plain files and a stream of numbers, nothing to build."""
