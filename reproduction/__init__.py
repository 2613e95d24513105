"""The paper: records of its experiments, the pages made of them, and how its text can be read."""
