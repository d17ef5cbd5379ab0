"""What-if questions: compare a changed copy of the engine with an unchanged one."""
