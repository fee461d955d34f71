"""Gates that see the question alone, on published verdicts: fits, tables and pages of studies/notes/evidence.md."""
