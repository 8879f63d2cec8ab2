"""For learners: checks of exercises, the glossary, the map of presets, and where the code is published."""
