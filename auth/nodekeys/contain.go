package nodekeys

// Containing panics: a panic about a name closes that name. It does not end the process
// and never admits a key.

import "errors"

// errPanicked is the error of a write of a record that panicked.
var errPanicked = errors.New("the server failed over it")

// contain calls f and reports whether it returned.
func (k *Keeper) contain(what string, f func()) bool {
	if k.cfg.Contain == nil {
		f()
		return true
	}
	return k.cfg.Contain(what, f)
}

// guard calls f, which handles a change of a name. If f panics, the name is closed until
// the next change or until Admit is called for it: the change may have been that a key has
// lost the name.
func (k *Keeper) guard(name string, f func()) {
	if k.contain("identity of node "+name, f) {
		return
	}
	why := &RefusedError{name, "the server failed over its identity: have an administrator look at the server's log"}
	shut := &holder{record: &Record{Name: name}, closed: true, refuse: why}
	// set may have panicked, so its steps are done one by one.
	k.contain("requests of node "+name, func() {
		for _, w := range k.shut(name, shut) {
			w.cancel(why)
		}
	})
	k.contain("sessions of node "+name, func() { k.cfg.Ended(name, shut.holds, why) })
}

// shut replaces the holder of a name by h and returns all requests under it.
func (k *Keeper) shut(name string, h *holder) (all []*watched) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.names[name] = h
	for w := range k.watches[name] {
		all = append(all, w)
	}
	return all
}
