"""What only learners need: checks of exercises, the glossary, the map of presets."""
