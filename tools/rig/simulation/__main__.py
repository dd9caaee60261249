import sys, time, os
from tools.rig.simulation import world, plan
from tools.rig.simulation.plan import plan_of
world.quiet()
for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    t=time.process_time()
    r=world.run(plan_of(seed))
    print(seed, r.violation and (r.violation.name, r.violation.what[:300]), r.steps, round(r.simulated_s), r.passages, r.actuated, r.checks, round(time.process_time()-t,2), flush=True)
    if len(sys.argv)>3:
        print("\n".join(r.log))
