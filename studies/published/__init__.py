"""Gates that see the question alone, on published verdicts: fits, tables and pages of docs/lab/evidence.md."""
