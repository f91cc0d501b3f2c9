package nodekeys

// A record: the state of one name, and its changes.

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// Namespace is where the records are.
	Namespace = "hawser-node-identities"
	// Label is the label of records among other config maps.
	Label = "hawser.dev/node-identity"
	// ExtraKey is the entry of a user's extra with the key by which a node was
	// authenticated.
	ExtraKey = "hawser.dev/node-key-sha256"
	// recordKey is the entry of a ConfigMap's data with the record, in JSON.
	recordKey = "record"
	// maxKeys bounds the keys of a name: the one in use, and renewed ones that are not in
	// use yet.
	maxKeys = 4
	// maxBarred bounds the keys that are barred from a name after it was revoked.
	maxBarred = 16
	// maxReason bounds the reason of a revocation, in bytes.
	maxReason = 256
	// clockSkew is how far the clocks of the servers may differ.
	clockSkew = 10 * time.Second
)

// A Key is the SHA-256 of a public key (SubjectPublicKeyInfo, as in RFC 7469).
type Key [sha256.Size]byte

// KeyOf is the key of a certificate.
func KeyOf(c *x509.Certificate) Key { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// ParseKey parses the form of String.
func ParseKey(s string) (Key, error) {
	var k Key
	if b, err := hex.DecodeString(s); err != nil || len(b) != len(k) {
		return k, fmt.Errorf("key %q is not the SHA-256 of a public key in hexadecimal", s)
	}
	_, err := hex.Decode(k[:], []byte(s))
	return k, err
}

// String is the key in hexadecimal.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// MarshalText and UnmarshalText are for JSON.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Key) UnmarshalText(b []byte) (err error) {
	*k, err = ParseKey(string(b))
	return err
}

// A Held is a key that holds a name.
type Held struct {
	Key   Key         `json:"sha256"`
	Since metav1.Time `json:"since"`
}

// A Revocation means that no key of a name is admitted.
type Revocation struct {
	At     metav1.Time `json:"at"`
	By     string      `json:"by,omitempty"`
	Reason string      `json:"reason,omitempty"`
}

// An Allowance lets the next machine with a join token take the name.
type Allowance struct {
	Until metav1.Time `json:"until"`
	By    string      `json:"by,omitempty"`
}

// A Record is the state of one name. It is not changed once it is shared.
type Record struct {
	// Name is the node's.
	Name string `json:"-"`
	// Keys hold the name; the oldest first.
	Keys []Held `json:"keys,omitempty"`
	// Adopt means that the first key that is used takes the name: the node is older than
	// the records.
	Adopt bool `json:"adopt,omitempty"`
	// NodeUID is the Node object whose deletion frees the name; empty while there is none.
	NodeUID string `json:"nodeUID,omitempty"`
	// Former is a Node object of an earlier tenure.
	Former string `json:"formerNodeUID,omitempty"`
	// Site is the node's site in the join token, until the Node is labelled with it.
	Site string `json:"site,omitempty"`

	Revoked *Revocation `json:"revoked,omitempty"`
	Allowed *Allowance  `json:"allowed,omitempty"`
	// TokensAfter is set once the name was revoked. Tokens of the node's pods that were
	// issued until then are of a revoked machine, and are refused: the pods may live on.
	TokensAfter *metav1.Time `json:"podTokensAfter,omitempty"`
	// Freed means that the Node was deleted, and that the record exists for TokensAfter
	// only. The name is free.
	Freed bool `json:"freed,omitempty"`
	// Barred are keys from before the name was revoked and allowed again. They are kept
	// with Config.Vouched, since the other API server may still accept them.
	Barred []Key `json:"barred,omitempty"`

	object  string // the uid of the ConfigMap
	version uint64 // its resource version, as a number
}

// Holds reports whether a key is among those of the name.
func (r *Record) Holds(k Key) bool {
	return slices.ContainsFunc(r.Keys, func(h Held) bool { return h.Key == k })
}

// mayBeTaken reports whether another key may take the name now.
func (r *Record) mayBeTaken(now time.Time) bool {
	return r.Allowed != nil && now.Before(r.Allowed.Until.Time)
}

// taken is the record after a key has taken the name, with a site if that is not empty.
func (r *Record) taken(k Key, site string, now time.Time) *Record {
	next := &Record{Name: r.Name, Keys: []Held{{k, stamp(now)}}, NodeUID: r.NodeUID, Former: r.Former, Site: site, object: r.object}
	if next.TokensAfter = r.ended(); next.TokensAfter != nil && (r.Revoked != nil || r.Freed) {
		next.TokensAfter = between(next.TokensAfter.Time, now)
	}
	return next
}

// followed is the record after a key has taken the name of a Node that was deleted. It is
// in another object, so that the two have different uids, unless it has the time of a
// revocation: that must exist at any moment.
func (r *Record) followed(k Key, site string, now time.Time) *Record {
	had := *r
	had.Former, had.NodeUID = r.NodeUID, ""
	next := had.taken(k, site, now)
	if next.TokensAfter == nil {
		next.object = ""
	}
	return next
}

// freed is the record after the Node with that uid was deleted, if there was a revocation.
func (r *Record) freed(node string) *Record {
	return &Record{Name: r.Name, Former: node, TokensAfter: r.ended(), Freed: true, object: r.object}
}

// ended is the time of the last revocation; nil if there was none.
func (r *Record) ended() *metav1.Time {
	if r.Revoked != nil && (r.TokensAfter == nil || r.TokensAfter.Before(&r.Revoked.At)) {
		return &r.Revoked.At
	}
	return r.TokensAfter
}

// between is a time that is after the tokens of a machine that was revoked, and before those
// of the one that takes the name now. Servers learn of a revocation a moment after it, and
// its time may be by the clock of an administrator's machine, so the time is near to now.
func between(revoked, now time.Time) *metav1.Time {
	at := now.Add(-clockSkew)
	if revoked.After(at) {
		at = revoked
	}
	if at.After(now) {
		at = now.Add(-time.Second) // the times in tokens are in seconds
	}
	t := stamp(at)
	return &t
}

// renewed is the record after the holder of by got the key k. Keys older than by are not
// in use any more and are dropped. Later ones stay: of two requests at the same time, the
// node may use the certificate of either.
func (r *Record) renewed(by, k Key, now time.Time) *Record {
	next := *r
	next.Adopt = false
	i := max(0, slices.IndexFunc(r.Keys, func(h Held) bool { return h.Key == by }))
	next.Keys = slices.Clone(r.Keys[i:])
	if len(next.Keys) >= maxKeys {
		next.Keys = slices.Delete(next.Keys, 1, len(next.Keys)-maxKeys+2)
	}
	next.Keys = append(next.Keys, Held{k, stamp(now)})
	return &next
}

func stamp(now time.Time) metav1.Time { return metav1.NewTime(now.UTC().Truncate(time.Second)) }

// decode reads a record.
func decode(m *corev1.ConfigMap) (*Record, error) {
	if m.Labels[Label] == "" {
		return nil, errors.New("it is not labelled as a node's identity")
	}
	r := &Record{}
	if err := json.Unmarshal([]byte(m.Data[recordKey]), r); err != nil {
		return nil, fmt.Errorf("entry %s: %w", recordKey, err)
	}
	if len(r.Keys) > maxKeys {
		return nil, fmt.Errorf("entry %s: %d keys, at most %d are allowed", recordKey, len(r.Keys), maxKeys)
	}
	r.Name, r.object, r.version = m.Name, string(m.UID), versionOf(m)
	return r, nil
}

// versionOf is zero if versions are not increasing numbers.
func versionOf(m *corev1.ConfigMap) uint64 {
	v, err := strconv.ParseUint(m.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// encode writes r into m.
func (r *Record) encode(m *corev1.ConfigMap) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the identity of node %s: %w", r.Name, err)
	}
	metav1.SetMetaDataLabel(&m.ObjectMeta, Label, "key")
	m.Data = map[string]string{recordKey: string(text)}
	return nil
}

// State describes the record in a few words.
func (r *Record) State(now time.Time) string {
	switch {
	case r.mayBeTaken(now):
		return "another machine may take it until " + r.Allowed.Until.UTC().Format(time.RFC3339)
	case r.Revoked != nil:
		return r.Revoked.String()
	case r.Freed:
		return "free, as its Node was deleted; it had been revoked"
	case r.Adopt:
		return "the first certificate that is shown takes it"
	case len(r.Keys) == 0:
		return "no key holds it"
	default:
		last := r.Keys[len(r.Keys)-1]
		return "held by key sha256:" + last.Key.String()[:12] + "… since " + last.Since.UTC().Format(time.RFC3339)
	}
}

// String says when, by whom and why.
func (v *Revocation) String() string {
	text := "revoked at " + v.At.UTC().Format(time.RFC3339)
	if v.By != "" {
		text += " by " + v.By
	}
	if v.Reason != "" {
		text += ": " + v.Reason
	}
	return text
}
