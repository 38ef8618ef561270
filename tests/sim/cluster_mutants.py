from tests.sim.planting import Mutant
CLUSTER_MUTANTS: dict[str, Mutant] = {}
