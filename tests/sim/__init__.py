"""A broker in a world of our making: virtual time, simulated wires and disks, and a nemesis, all drawn from a seed.

disk      a device that loses power, fills up and breaks
loop      virtual time; who owns a callback; threads as later steps
network   wires that are slow, cut messages anywhere and break
machine   the computer: it boots a broker, kills it, loses its power
clients   producers, consumers and committers that write a history (`link` is their connection)
topic_owner, group_members  clients that change topics, and members of groups: each knows what it must be told
inspector  a look inside the broker, again and again
scenario  one whole life: swarm, nemesis, calm, judgement
campaign  thousands of lives, which can be stopped and go on later (`make sim`)
mutants   brokers with one safety rule switched off, which must be found out
"""
