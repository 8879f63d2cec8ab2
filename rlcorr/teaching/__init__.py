"""For learners: checks of exercises, the glossary, and where the code is published."""
