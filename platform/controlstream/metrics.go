package controlstream

func (h *Hub) Samples(yield func(metric string, value float64, labels ...string)) {
	h.mu.Lock()
	there, away := map[Kind]int{}, 0
	for kind, of := range h.peers {
		for _, p := range of {
			if p.lost.IsZero() {
				there[kind]++
			} else {
				away++
			}
		}
	}
	h.mu.Unlock()
	for _, kind := range []Kind{KindActivator, KindNode} {
		yield("thaw_control_streams", float64(there[kind]), string(kind))
	}
	yield("thaw_activators_in_grace", float64(away))
}
