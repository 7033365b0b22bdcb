package clusterstate

import (
	"cmp"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative"
)

// unschedulable is how long a pod may stay unscheduled before its replica fails. Room that
// the orchestrator counts as free may still be in the act of being released.
const unschedulable = 15 * time.Second

// shimSilence is how long a pod that Kubernetes calls ready may go without a report of its
// shim before Kubernetes' condition counts: the node's loader may be away.
const shimSilence = 3 * time.Second

// loaderSilence is how long a pod may wait on a node whose loader has never reported before its
// replica fails.
const loaderSilence = 30 * time.Second

// status is the replica as reported to the orchestrator; pods are those of the cluster.
func (r *replica) status(pods podSet, now time.Time) functions.ReplicaStatus {
	st := r.state(pods, now)
	st.ID, st.Team, st.Model, st.GPUs = r.id, r.rev.name.Team, r.rev.name.Name, r.gpus
	if r.lastStatus.State != st.State {
		r.stateSince = now
	}
	if p := r.pod; p != nil {
		if p.startedAt.IsZero() && p.running && !r.rev.shim {
			p.startedAt = now
		}
		if p.readyAt.IsZero() && st.State == functions.Ready {
			p.readyAt = now
		}
	}
	st.Phases = r.phases(st.Phases, now)
	r.lastStatus = st
	st.Since = now.Sub(r.stateSince).Milliseconds()
	return st
}

// phases lists the phases of a start, counted from the placement: first until the shim's
// first report, then as the shim reports them. Without the shim only the spawn phase is
// known.
func (r *replica) phases(reported []functions.Span, now time.Time) []functions.Span {
	came := now
	if r.pod != nil && !r.pod.startedAt.IsZero() {
		came = r.pod.startedAt
	}
	place := max(0, came.Sub(r.plannedAt).Seconds())
	out := []functions.Span{{Phase: functions.PhasePlace, Duration: place}}
	if r.pod == nil || r.pod.startedAt.IsZero() {
		return out
	}
	if !r.rev.shim {
		up := now
		if !r.pod.readyAt.IsZero() {
			up = r.pod.readyAt
		}
		return append(out, functions.Span{Phase: functions.PhaseSpawn, Start: place, Duration: max(0, up.Sub(came).Seconds())})
	}
	for _, p := range reported {
		p.Start += place
		p.Parts = slices.Clone(p.Parts)
		for i := range p.Parts {
			p.Parts[i].Start += place
		}
		out = append(out, p)
	}
	return out
}

// state derives the replica's state. The shim's report counts first; Kubernetes'
// status counts without one, or when the pod is ending.
func (r *replica) state(pods podSet, now time.Time) functions.ReplicaStatus {
	p := r.pod
	st := functions.ReplicaStatus{State: functions.Downloading, Percent: -1}
	failed := func(why string) functions.ReplicaStatus {
		st.State, st.Error = functions.Failed, why
		return st
	}
	switch {
	case r.ending || p != nil && p.terminating:
		if p != nil && p.reported != nil {
			st = *p.reported
		}
		st.State, st.Error = functions.Draining, ""
		return st
	case p == nil && r.rev.refusal != "" && now.Sub(r.rev.refusedAt) > time.Second:
		return failed(r.rev.refusal)
	case p == nil:
		return st
	case p.problem != "":
		if p.reported != nil && p.reported.State == functions.Failed && p.reported.Error != "" {
			return failed(p.reported.Error)
		}
		return failed(p.problem)
	case p.ended:
		return failed("the pod has ended")
	case p.unscheduled != "" && p.node == "" && now.Sub(p.unscheduledAt) >= unschedulable:
		why := "Kubernetes finds no node for it: " + LastLine(p.unscheduled)
		if strings.Contains(why, "untolerated taint") {
			why += " (tolerations are written in spec.pod of the model file, or for all models with GPUs by thaw-knative team create --pod)"
		}
		return failed(why)
	case r.noLoader && r.rev.shim && p.node != "" && !p.running && p.reported == nil && now.Sub(r.plannedAt) >= loaderSilence:
		return failed("no loader of thaw runs on its node " + p.node + ", and its pod waits there for the loader's folder: " +
			"kubectl get pods -n " + knative.System + " -o wide; thaw-knative install --loaders LABEL=VALUE chooses their nodes")
	case p.reported != nil && !p.shimGone:
		st = *p.reported
		if st.State == functions.Unloaded { // Kubernetes has not reported it yet
			st.State = functions.Draining
		}
		if st.Endpoint != "" {
			if st.Endpoint = pods.endpoint(p, st.Endpoint); st.Endpoint == "" && st.State == functions.Ready {
				st.State = functions.Loading
			}
		}
		return st
	case p.ip != "" && (!r.rev.shim && (p.probed || p.ready) || r.rev.shim && p.ready && now.Sub(r.plannedAt) > shimSilence):
		// It has no shim, or no loader reports the pod and Kubernetes' probe succeeded.
		st.State, st.Endpoint = functions.Ready, "http://"+net.JoinHostPort(p.ip, strconv.Itoa(queueProxy))
		return st
	case p.running:
		st.State = functions.Loading
		return st
	}
	return st
}

// endpoint is the URL for requests to a pod. The shim reports the port. The address is
// Kubernetes'; before that is known, the shim's, unless another pod has it: a pod could
// otherwise direct activators to engines that only they may reach.
func (s podSet) endpoint(p *pod, reportedURL string) string {
	u, err := url.Parse(reportedURL)
	if err != nil || u.Scheme != "http" || u.Port() == "" {
		return ""
	}
	if p.ip != "" {
		return "http://" + net.JoinHostPort(p.ip, u.Port())
	}
	ip := net.ParseIP(u.Hostname())
	if ip == nil || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() {
		return ""
	}
	for _, other := range s {
		if other != p && other.ip != "" && ip.Equal(net.ParseIP(other.ip)) && !other.ended {
			return ""
		}
	}
	return "http://" + net.JoinHostPort(ip.String(), u.Port())
}

// EarlyReplicas lists the starting replicas of a revision whose shim accepts requests
// before READY. A READY replica that is no longer in the snapshot is about to be stopped
// and is left out.
func (s *State) EarlyReplicas(of *snapshot.Snapshot) (out []snapshot.Replica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.revisions[of.Name]
	if r == nil || !r.shim {
		return nil
	}
	for _, w := range s.bindings.replicas {
		p := w.pod
		if w.rev != r || w.ending || p == nil || !p.active() || p.problem != "" || p.reported == nil || p.shimGone {
			continue
		}
		if of.HasReplica(w.id) {
			w.published = true
			continue
		}
		switch state := p.reported.State; {
		case state == functions.Ready && !w.published, // the orchestrator may learn it a moment later
			state == functions.Downloading, state == functions.Loading:
			if at := s.bindings.pods.endpoint(p, p.reported.Endpoint); at != "" {
				out = append(out, snapshot.Replica{ID: w.id, Endpoint: at})
			}
		}
	}
	slices.SortFunc(out, func(a, b snapshot.Replica) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// queueProxy is the port at which Knative's proxy of a pod accepts requests.
const queueProxy = 8012
