"""What control does of its own accord, with the state it keeps.

rollouts  carries out rollouts: the pure machine of gateway.rollout, its table, and what it orders
├── ports     what it needs of releases, devices, evidence and followers
├── fits      which devices a release is for, and as what
└── sights    what devices report, as the machine sees it
"""
