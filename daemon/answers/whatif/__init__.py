"""What-if questions: a copy of the engine is changed and compared with one that is not."""
