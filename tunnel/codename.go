// Names of codes, for programs: values of metric labels, results in logs.

package tunnel

// codeNames is indexed by Code. It is never changed.
var codeNames = [...]string{
	0:           "ok",
	NoNode:      "no_node",
	Parked:      "parked",
	Refused:     "refused",
	Unreachable: "unreachable",
	Timeout:     "timeout",
	Denied:      "denied",
	Draining:    "draining",
	Ambiguous:   "ambiguous",
	Internal:    "internal",
	Canceled:    "canceled",
	Unresolved:  "unresolved",
	Invalid:     "invalid",
	Replaced:    "replaced",
	Lost:        "lost",
	Busy:        "busy",
	Dead:        "dead",
	Revoked:     "revoked",
}

// Name is one word of a closed list. It is "ok" for 0, which is success, and "other" for codes
// of newer peers.
func (c Code) Name() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return "other"
}
