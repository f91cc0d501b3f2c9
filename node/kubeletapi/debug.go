package kubeletapi

// Debugging: profiles of the agent's process.

import (
	"net/http"
	"runtime/pprof"
	"strconv"
	"time"
)

const (
	// cpuProfileTime is how long a CPU profile takes if the client does not say, as in package
	// net/http/pprof, and maxProfileTime the longest.
	cpuProfileTime = 30 * time.Second
	maxProfileTime = time.Minute
)

// profile answers /debug/pprof/NAME: a profile of package runtime/pprof, or "profile" for one
// of the CPU, which takes ?seconds. ?debug=1 asks for text.
func (s *Server) profile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("profile")
	if name == "profile" {
		s.cpuProfile(w, r)
		return
	}
	p := pprof.Lookup(name)
	if p == nil {
		http.Error(w, "there is no profile "+strconv.Quote(name), http.StatusNotFound)
		return
	}
	debug, _ := strconv.Atoi(r.FormValue("debug")) // 0 without it: the binary format
	if debug == 0 {
		w.Header().Set("Content-Type", "application/octet-stream")
	}
	_ = p.WriteTo(w, min(max(debug, 0), 2)) // fails only if the client is gone
}

// cpuProfile writes a CPU profile. There is one at a time in a process.
func (s *Server) cpuProfile(w http.ResponseWriter, r *http.Request) {
	d := cpuProfileTime
	if n, err := strconv.Atoi(r.FormValue("seconds")); err == nil && n > 0 {
		d = min(time.Duration(min(n, 3600))*time.Second, maxProfileTime)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := pprof.StartCPUProfile(w); err != nil {
		w.Header().Del("Content-Type")
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	defer pprof.StopCPUProfile()
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}
