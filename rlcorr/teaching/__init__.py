"""For learners: checks of exercises, the glossary, and the map of presets."""
