// Defaults: what a client left out of an object, as users of the Kubernetes API expect it: a
// pod's restart policy, a service's type, the replicas of a deployment.
//
// A defaulting function is pure: it looks at one object, changes only fields
// that are unset, and applied twice it changes nothing the second time. The
// API server applies them through the scheme, once after every decode, so an
// object read from the store gets the defaults of today and not those of the
// day it was written.
//
// The same Go types serve as the v1 and as the internal version here, so the
// things that Kubernetes does while it converts between the two are done here
// as well: stringData of a secret moves to data, and fields that exist in a
// singular and a plural form (podIP and podIPs, podCIDR and podCIDRs) are kept
// in step.
//
// What needs more than the object (admission, allocation of addresses) is not
// here. The few things that need the object's final name or uid are done by the hooks of
// kinds.

package kinds

// set gives *p the value v if it is the zero value.
func set[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// setPtr makes *p point to a new v if it is nil.
func setPtr[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}
