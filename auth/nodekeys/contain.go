package nodekeys

// What a panic costs: the name that it was about, not the process, and never by
// letting a key in.

import "errors"

// errPanicked is why what has become of a name could not be written down.
var errPanicked = errors.New("the server failed over it")

// contain calls f and tells whether it returned.
func (k *Keeper) contain(what string, f func()) bool {
	if k.cfg.Contain == nil {
		f()
		return true
	}
	return k.cfg.Contain(what, f)
}

// guard calls f, which learns something of a name. If f panics the name is closed until
// more is learned of it, at the latest when somebody asks for it: what f was about may
// be that a key has lost it.
func (k *Keeper) guard(name string, f func()) {
	if k.contain("identity of node "+name, f) {
		return
	}
	why := &RefusedError{name, "the server failed over its identity: have an administrator look at the server's log"}
	shut := &holder{record: &Record{Name: name}, closed: true, refuse: why}
	// set may be what panicked, so what it would do is done one by one.
	k.contain("requests of node "+name, func() {
		for _, w := range k.shut(name, shut) {
			w.cancel(why)
		}
	})
	k.contain("sessions of node "+name, func() { k.cfg.Ended(name, shut.holds, why) })
}

// shut puts h in the place of what was known of a name and returns all that goes on
// under it.
func (k *Keeper) shut(name string, h *holder) (all []*watched) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.names[name] = h
	for w := range k.watches[name] {
		all = append(all, w)
	}
	return all
}
