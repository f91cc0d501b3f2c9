package nodekeys

// The book: changes of records, each by one conditional write.

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/retry"

	"github.com/hawser-project/hawser/auth"
)

// prepared is the annotation of the namespace with the time at which records were made
// for the existing Nodes.
const prepared = "hawser.dev/node-identities-since"

// ErrUnknown means that no key holds the name.
var ErrUnknown = errors.New("no key holds the name of this node")

// A HeldError says why a key cannot take a name.
type HeldError struct{ text string }

func (e *HeldError) Error() string { return e.text }

func held(format string, args ...any) error { return &HeldError{fmt.Sprintf(format, args...)} }

// A Book changes records through the API. It is for the control plane's own
// identities and for administrators.
type Book struct {
	client kubernetes.Interface
	now    func() time.Time
}

// NewBook returns a book in client's cluster.
func NewBook(client kubernetes.Interface) *Book { return &Book{client: client, now: time.Now} }

// Get returns the record of a name, or ErrUnknown.
func (b *Book) Get(ctx context.Context, name string) (*Record, error) {
	_, r, err := b.read(ctx, name)
	return r, err
}

func (b *Book) read(ctx context.Context, name string) (*corev1.ConfigMap, *Record, error) {
	m, err := b.client.CoreV1().ConfigMaps(Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("%w: %s", ErrUnknown, name)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the identity of node %s: %w", name, err)
	}
	r, err := decode(m)
	if err != nil {
		return m, nil, held("config map %s/%s is not the identity of a node (%v): choose another node name, or delete it", Namespace, name, err)
	}
	return m, r, nil
}

// Claim gives the name to a key whose request was made with a join token. site is the
// node's site in the token; empty if there is none. It fails with a *HeldError if another
// key holds the name, or if the key was revoked with it. It may be called again, also for a
// node that joins again with the key that it has.
func (b *Book) Claim(ctx context.Context, name string, k Key, site string) error {
	// Most names that are claimed are new ones.
	first := &Record{Name: name, Keys: []Held{{k, stamp(b.now())}}, Site: site}
	if err := b.create(ctx, first); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return b.change(ctx, name, func(r *Record) (*Record, error) {
		switch {
		case r == nil:
			return first, nil
		case r.Holds(k) && r.Revoked == nil:
			return r, nil
		case r.Freed:
			return r.taken(k, site, b.now()), nil
		}
		gone, err := b.gone(ctx, r)
		switch {
		case err != nil:
			return nil, err
		case gone:
			return r.followed(k, site, b.now()), nil
		case r.mayBeTaken(b.now()) && r.Revoked != nil && r.Holds(k):
			return nil, held("this key of node %q was %s: another key may take the name", name, r.Revoked.String())
		case r.mayBeTaken(b.now()):
			return r.taken(k, site, b.now()), nil
		case r.Revoked != nil:
			return nil, held("node %q was %s; an administrator can let a machine join under this name with \"hawser node allow %s\"", name, r.Revoked.String(), name)
		}
		return nil, held("node name %q is held by the key of another machine; choose another --node-name, or have an administrator free it: "+
			"\"hawser node allow %s\" lets the next machine take it, \"kubectl delete node %s\" removes the node", name, name, name)
	})
}

// gone reports whether the Node object of the record does not exist any more.
func (b *Book) gone(ctx context.Context, r *Record) (bool, error) {
	if r.NodeUID == "" {
		return false, nil
	}
	n, err := b.client.CoreV1().Nodes().Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up node %s: %w", r.Name, err)
	}
	return string(n.UID) != r.NodeUID, nil
}

// Renew gives the name also to k, which the holder of by has requested. by is nil if the
// authenticator does not report the key. It fails with a *HeldError if by does not hold
// the name.
func (b *Book) Renew(ctx context.Context, name string, by *Key, k Key) error {
	return b.change(ctx, name, func(r *Record) (*Record, error) {
		switch {
		case r == nil && by == nil:
			return &Record{Name: name, Keys: []Held{{k, stamp(b.now())}}}, nil
		case r == nil:
			return nil, held("node %q has been deleted, or its identity has: it needs a join token to come back", name)
		case r.Revoked != nil:
			return nil, held("node %q was %s", name, r.Revoked.String())
		case r.Holds(k):
			return r, nil
		case by == nil && len(r.Keys) == 0:
			return r.renewed(k, k, b.now()), nil
		case by == nil:
			return r.renewed(r.Keys[len(r.Keys)-1].Key, k, b.now()), nil
		case !r.Holds(*by):
			return nil, held("node name %q does not belong to the key that this request was made with", name)
		}
		return r.renewed(*by, k, b.now()), nil
	})
}

// Adopt gives the name to k if the record allows the first key with a certificate to take
// it.
func (b *Book) Adopt(ctx context.Context, name string, k Key) error {
	return b.change(ctx, name, func(r *Record) (*Record, error) {
		if r == nil || !r.Adopt || len(r.Keys) > 0 || r.Revoked != nil {
			return r, nil
		}
		return r.taken(k, "", b.now()), nil
	})
}

// Confirm returns nil if k still holds the name, and else a *HeldError.
func (b *Book) Confirm(ctx context.Context, name string, k Key) error {
	r, err := b.Get(ctx, name)
	switch {
	case errors.Is(err, ErrUnknown):
		return held("node %q has been deleted meanwhile", name)
	case err != nil:
		return err
	case r.Revoked != nil:
		return held("node %q was %s", name, r.Revoked.String())
	case !r.Holds(k):
		return held("node name %q belongs to another key", name)
	}
	return nil
}

// Revoke makes all keys of the name refused, and the tokens of its pods, until another key
// takes it after Allow. Tokens from before are refused then, too. It returns the revocation
// in force, which is an earlier one if there is one, or ErrUnknown.
func (b *Book) Revoke(ctx context.Context, name, by, reason string) (*Revocation, error) {
	if len(reason) > maxReason || strings.ContainsFunc(reason, func(c rune) bool { return c < ' ' }) {
		return nil, fmt.Errorf("the reason must be one line of at most %d bytes", maxReason)
	}
	var in *Revocation
	err := b.change(ctx, name, func(r *Record) (*Record, error) {
		if r == nil || r.Freed {
			return nil, fmt.Errorf("%w: %s", ErrUnknown, name)
		}
		if r.Revoked != nil && r.Allowed == nil {
			in = r.Revoked
			return r, nil
		}
		next := *r
		if next.Allowed = nil; r.Revoked == nil {
			next.Revoked = &Revocation{At: stamp(b.now()), By: by, Reason: reason}
		}
		in = next.Revoked
		return &next, nil
	})
	return in, err
}

// Allow lets the next machine that requests a certificate with a join token take the name,
// until then by the servers' clocks. The present keys hold it until then, unless they are revoked. It fails
// with ErrUnknown if no key holds the name, which is free then.
func (b *Book) Allow(ctx context.Context, name, by string, until time.Time) error {
	return b.change(ctx, name, func(r *Record) (*Record, error) {
		if r == nil || r.Freed {
			return nil, fmt.Errorf("%w: %s", ErrUnknown, name)
		}
		next := *r
		next.Allowed = &Allowance{Until: stamp(until), By: by}
		return &next, nil
	})
}

// Forget removes a record, as Get has returned it: its name is free then. It fails with a
// conflict if the name has another record by now. One that is gone is no error.
func (b *Book) Forget(ctx context.Context, r *Record) error {
	uid, version := types.UID(r.object), strconv.FormatUint(r.version, 10)
	is := &metav1.Preconditions{UID: &uid, ResourceVersion: &version}
	err := b.client.CoreV1().ConfigMaps(Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{Preconditions: is})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the identity of node %s: %w", r.Name, err)
	}
	return nil
}

// free writes that the name of a record with a revocation is free, since the Node with that
// uid was deleted.
func (b *Book) free(ctx context.Context, r *Record, node string) error {
	return b.change(ctx, r.Name, func(is *Record) (*Record, error) {
		if is == nil || is.object != r.object || is.Former == node || is.ended() == nil {
			return is, nil
		}
		return is.freed(node), nil
	})
}

// pods reports whether there are pods of a node.
func (b *Book) pods(ctx context.Context, node string) (bool, error) {
	list, err := b.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(), Limit: 1,
	})
	if err != nil {
		return false, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	return len(list.Items) > 0, nil
}

// label writes the site to a Node object. A node may not write that itself.
func (b *Book) label(ctx context.Context, name, node, site string) error {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{%q:%q}}}`, node, auth.SiteLabel, site)
	if _, err := b.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label node %s with its site: %w", name, err)
	}
	return nil
}

// bind records the Node object whose deletion frees the name. The object has its site by
// now.
func (b *Book) bind(ctx context.Context, name, object, node, site string) error {
	return b.change(ctx, name, func(r *Record) (*Record, error) {
		if r == nil || r.object != object || r.NodeUID != "" && r.NodeUID != node {
			return r, nil
		}
		next := *r
		next.NodeUID = node
		if r.Site == site {
			next.Site = ""
		}
		return &next, nil
	})
}

// change reads a record and writes the result of f, again until there was no other write
// or removal in between. f gets nil if there is no record. If it returns its argument,
// nothing is written.
func (b *Book) change(ctx context.Context, name string, f func(*Record) (*Record, error)) error {
	again := func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
	}
	return retry.OnError(retry.DefaultBackoff, again, func() error {
		m, r, err := b.read(ctx, name)
		if err != nil && !errors.Is(err, ErrUnknown) {
			return err
		}
		next, err := f(r)
		if err != nil || next == r {
			return err
		}
		if r != nil && next.object == "" {
			// Another tenure gets a new object, so that the two have different uids.
			if err = b.Forget(ctx, r); err != nil {
				return err
			}
			r = nil
		}
		if r == nil {
			return b.create(ctx, next)
		}
		if err = next.encode(m); err == nil {
			_, err = b.client.CoreV1().ConfigMaps(Namespace).Update(ctx, m, metav1.UpdateOptions{})
		}
		return written(name, err)
	})
}

// Each calls f with each record. Those that cannot be read are left out.
func (b *Book) Each(ctx context.Context, f func(*Record)) error {
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return b.client.CoreV1().ConfigMaps(Namespace).List(ctx, o)
	}
	err := pager.New(list).EachListItem(ctx, metav1.ListOptions{LabelSelector: Label}, func(o runtime.Object) error {
		if m, ok := o.(*corev1.ConfigMap); ok {
			if r, err := decode(m); err == nil {
				f(r)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the identities of nodes: %w", err)
	}
	return nil
}

// Vouched reports whether another API server decides which machines are nodes, as its Keeper
// was told in Config.
func (b *Book) Vouched(ctx context.Context) (bool, error) {
	ns, err := b.client.CoreV1().Namespaces().Get(ctx, Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read namespace %s: %w", Namespace, err)
	}
	return ns.Annotations[prepared] == "", nil
}

// create writes the record of a name that has none.
func (b *Book) create(ctx context.Context, r *Record) error {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: r.Name}}
	err := r.encode(m)
	if err == nil {
		_, err = b.client.CoreV1().ConfigMaps(Namespace).Create(ctx, m, metav1.CreateOptions{})
	}
	return written(r.Name, err)
}

func written(name string, err error) error {
	if err != nil {
		return fmt.Errorf("write the identity of node %s: %w", name, err)
	}
	return nil
}

// space returns the namespace. It makes it if it is missing.
func (b *Book) space(ctx context.Context) (*corev1.Namespace, error) {
	spaces := b.client.CoreV1().Namespaces()
	ns, err := spaces.Get(ctx, Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		ns, err = spaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			ns, err = spaces.Get(ctx, Namespace, metav1.GetOptions{})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make namespace %s: %w", Namespace, err)
	}
	return ns, nil
}

// Prepare makes the namespace, and, once in the life of a cluster, a record for each Node
// that existed before.
func (b *Book) Prepare(ctx context.Context) error {
	ns, err := b.space(ctx)
	if err != nil {
		return err
	}
	if ns.Annotations[prepared] != "" {
		return nil
	}
	nodes, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		err = b.change(ctx, n.Name, func(r *Record) (*Record, error) {
			if r != nil {
				return r, nil
			}
			return &Record{Name: n.Name, Adopt: true, NodeUID: string(n.UID)}, nil
		})
		if err != nil {
			return err
		}
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, prepared, b.now().UTC().Format(time.RFC3339))
	if _, err = b.client.CoreV1().Namespaces().Patch(ctx, Namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("note on namespace %s that all nodes have identities: %w", Namespace, err)
	}
	return nil
}
