"""The replay of a run of many ranks by as many processes, with the real reduction.

Rank 0 bisects as one process would, and it alone decides. The other ranks keep no state between two
steps: each is handed the parameters, buffers and random numbers, computes its own share of the
step on its own batch, and takes part in the reduction. So no two ranks can ever disagree.
"""
