package placement

import (
	"cmp"
	"math"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// nodeRoom is a node with its resources that are free now, and those that will be once
// its stopping replicas are gone.
type nodeRoom struct {
	node    *Node
	here    bool // Node.Here when the room was built
	host    rooms.Host
	gpus    []rooms.GPU
	leaving int // replicas that are stopping or falling asleep, without this plan's actions
	now     rooms.Room
	soon    rooms.Room
	held    *rooms.Room // free now, without this plan's promises
	waiting bool        // replicas are stopping or falling asleep here

	slept functions.Bytes // host memory of the replicas that this plan puts to sleep

	idle, busy []victim // evictable replicas in eviction order; sleepers are among the idle

	idleSum, busySum reservedSum // what all of idle, and all of busy, reserve
}

// reservedSum is what a list of victims reserves, added up when it is asked for.
type reservedSum struct {
	known bool // false after a change of the list
	rooms.Room
}

// mayFit reports whether res may fit once all idle replicas are evicted, or with busy all
// busy ones; false is certain.
func (r *nodeRoom) mayFit(res functions.Resources, busy bool) bool {
	sum, list := &r.idleSum, r.offers(busy)
	if busy {
		sum = &r.busySum
	}
	if !sum.known {
		sum.known = true
		sum.Clear(r.gpus)
		for i := range list {
			sum.Give(list[i].r.reserves())
		}
	}
	return r.soon.MayFitWith(&sum.Room, res)
}

func (r *nodeRoom) offers(busy bool) []victim {
	if busy {
		return r.busy
	}
	return r.idle
}

// change returns one of the lists, to be changed.
func (r *nodeRoom) change(busy bool) *[]victim {
	if busy {
		r.busySum.known = false
		return &r.busy
	}
	r.idleSum.known = false
	return &r.idle
}

// host is the host room of n; resources that n does not report are unlimited.
func (n *Node) host() rooms.Host {
	return rooms.Host{Memory: n.Memory, CPU: cmp.Or(n.CPU, math.MaxInt64/4), Pods: cmp.Or(n.Pods, math.MaxInt32)}
}

// Room is the room of n without replicas.
func (n *Node) Room() rooms.Room {
	return rooms.New(n.host(), n.GPUs, make([]rooms.Slot, len(n.GPUs)))
}

func (a *attempt) reserve(m *nodeRoom, f *Function, gpus []int) {
	a.mixPromise(m.node.ID)
	a.reserved = true
	m.now.Take(f.Resources, gpus)
	m.soon.Take(f.Resources, gpus)
	a.counts.held[f.Name.Team] += f.Resources.GPUs
	a.counts.pledged[f.Name.Team] += f.Resources.GPUs
}

// fitsEmpty reports whether res fits the node if it is empty.
func (r *nodeRoom) fitsEmpty(res functions.Resources) bool {
	return rooms.FitsEmpty(&r.host, r.gpus, res)
}
