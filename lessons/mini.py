"""Your own training loop. This file is empty: the lessons say what to write below each line, with a check for each.

A piece that is missing here is taken from exercises/mini_solution.py, so the command works from the beginning:
`python lessons/mini.py --lag 16 --weights capped --seeds 5` says whose pieces it runs, and draws the curve.
"""

# Lesson 01: sample, log_probs, advantages

# Lesson 02: ratios

# Lesson 04: clipped

# Lesson 05: capped

# Lesson 07: kept, loss

# Lesson 13: update, train

if __name__ == "__main__":
    from mini_curve import main

    main()
