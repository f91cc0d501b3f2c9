// This file reads the ConfigMaps, Secrets and tokens that pods refer to.

package pods

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth/apiclient"
)

// objectKey names an object that pods refer to. Tokens have the pod's uid and the
// audience in it.
type objectKey struct {
	kind      string
	namespace string
	name      string
	more      string
}

// answerTimeout bounds a read if there is an older answer.
const answerTimeout = 5 * time.Second

// objects is a cache in front of the API. An object is used for ttl without another read, but for
// pods that came later, and for the life of the pod while the API cannot be reached, so that
// containers restart without a server. After a read without an answer, cached objects of its kind
// are not read during ttl, so that many reads do not wait one after the other. Other kinds are: one
// object that is too large for a slow link does not stop the renewal of tokens. After an
// internal error only that object is not read. The cache never hides an answer
// that the object does not exist or may not be read. It is bounded by calls of forget for
// each pod that ends, which drop objects that no pod has read since.
type objects struct {
	api *apiclient.API
	ttl time.Duration

	mu     sync.Mutex // guards the following
	cache  map[objectKey]*object
	silent map[string]time.Time // until when cached objects of a kind are not read
}

type object struct {
	value any       // nil means that the object does not exist
	read  time.Time // when it was asked for
	until time.Time // when it is read again
	used  time.Time
}

// have returns the older answer.
func (o *object) have(key objectKey) (any, error) {
	if o.value == nil {
		return nil, notFound(key)
	}
	return o.value, nil
}

// notFound uses the singular, as the kubelet's events do.
func notFound(key objectKey) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: key.kind}, key.name)
}

func newObjects(api *apiclient.API, ttl time.Duration) *objects {
	return &objects{api: api, ttl: ttl, cache: map[objectKey]*object{}, silent: map[string]time.Time{}}
}

func configMapKey(namespace, name string) objectKey {
	return objectKey{kind: "configmap", namespace: namespace, name: name}
}

func secretKey(namespace, name string) objectKey {
	return objectKey{kind: "secret", namespace: namespace, name: name}
}

func tokenKey(pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) objectKey {
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	return objectKey{
		kind: "token", namespace: pod.Namespace, name: account,
		more: fmt.Sprintf("%s/%s/%d", pod.UID, p.Audience, tokenSeconds(p)),
	}
}

// tokenSeconds is the requested life of a token.
func tokenSeconds(p *corev1.ServiceAccountTokenProjection) int64 {
	if p.ExpirationSeconds != nil {
		return *p.ExpirationSeconds
	}
	return 3600
}

// The ConfigMap rootsName has the authorities of the API server in each namespace. Nearly
// every pod has it in a volume and it rarely changes, so it is cached for rootsTTL: with
// the ttl of others it would be most of an idle node's requests.
const (
	rootsName = "kube-root-ca.crt"
	rootsTTL  = time.Hour
)

// ConfigMap reads a ConfigMap. kept is the caller's own copy, which it gets if the
// server does not answer and the cache has none; nil for none. Pods have copies
// of different ages, so the copy of one pod is never used for another. What was read before since,
// when the caller's pod came, is read again: its author may have written it just before.
func (o *objects) ConfigMap(ctx context.Context, namespace, name string, kept *input, since time.Time) (*corev1.ConfigMap, error) {
	ttl := o.ttl
	if name == rootsName {
		ttl, since = rootsTTL/2+rand.N(rootsTTL/2), time.Time{}
	}
	v, err := o.load(ctx, configMapKey(namespace, name), kept, since, func(ctx context.Context) (any, time.Time, error) {
		cm, err := o.api.ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		return cm, time.Now().Add(ttl), err
	})
	if err != nil {
		return nil, err
	}
	return v.(*corev1.ConfigMap), nil //nolint:forcetypeassert // stored above
}

// Secret reads a Secret as ConfigMap does.
func (o *objects) Secret(ctx context.Context, namespace, name string, kept *input, since time.Time) (*corev1.Secret, error) {
	v, err := o.load(ctx, secretKey(namespace, name), kept, since, func(ctx context.Context) (any, time.Time, error) {
		s, err := o.api.Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		return s, time.Now().Add(o.ttl), err
	})
	if err != nil {
		return nil, err
	}
	return v.(*corev1.Secret), nil //nolint:forcetypeassert // stored above
}

// Token reads a token as ConfigMap does. A token is requested again when seven to eight tenths
// of its life are over, or after a day less up to a tenth: requests of many pods that
// started together, on one node or on many, are spread over that tenth. A kubelet spreads
// them over ten seconds.
func (o *objects) Token(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection, kept *input) (string, error) {
	key, seconds := tokenKey(pod, p), tokenSeconds(p)
	v, err := o.load(ctx, key, kept, time.Time{}, func(ctx context.Context) (any, time.Time, error) {
		req := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef:    &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		}}
		if p.Audience != "" {
			req.Spec.Audiences = []string{p.Audience}
		}
		now := time.Now()
		out, err := o.api.CreateToken(ctx, pod.Namespace, key.name, req)
		if err != nil {
			return nil, now, err
		}
		life := out.Status.ExpirationTimestamp.Sub(now)
		// That is by two clocks, of which this machine's may be wrong. The life that is asked for is
		// by none.
		if s := time.Duration(ptr.Deref(out.Spec.ExpirationSeconds, 0)) * time.Second; s > 0 && (life > s+time.Minute || life <= 0) {
			life = s
		}
		const day = 24 * time.Hour
		tenth := max(life/10, 1)
		return out.Status.Token, now.Add(min(8*tenth, day) - rand.N(min(tenth, day/10))), nil
	})
	if err != nil {
		return "", err
	}
	return v.(string), nil //nolint:forcetypeassert // stored above
}

func (o *objects) load(ctx context.Context, key objectKey, kept *input, since time.Time, read func(context.Context) (any, time.Time, error)) (any, error) {
	now := time.Now()
	o.mu.Lock()
	older := o.cache[key]
	if older == nil && kept != nil {
		older = &object{value: kept.value()}
	}
	if older != nil {
		older.used = now
		if fresh(older.until, now) && !older.read.Before(since) || now.Before(o.silent[key.kind]) {
			defer o.mu.Unlock()
			return older.have(key)
		}
	}
	o.mu.Unlock()

	if older != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answerTimeout)
		defer cancel()
	}
	value, until, err := read(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil:
		clear(o.silent)
		o.cache[key] = &object{value: value, read: now, until: until, used: now}
		return value, nil
	case apierrors.IsNotFound(err) && key.kind != "token":
		o.cache[key] = &object{used: now}
		return nil, notFound(key)
	case older != nil && !answered(err):
		if again := time.Now().Add(o.ttl); apierrors.IsInternalError(err) {
			older.read, older.until = now, again
		} else {
			o.silent[key.kind] = again
		}
		return older.have(key)
	}
	return nil, fmt.Errorf("read %s %s/%s: %w", key.kind, key.namespace, key.name, err)
}

// fresh reports whether what is good until a time may be used: by the time that the machine was
// awake, and by its clock, which goes on in a suspended machine and may be set.
func fresh(until, now time.Time) bool {
	return now.Before(until) && now.Round(0).Before(until.Round(0))
}

// answered reports whether err is the server's answer about the object, and not a failure
// to reach the server or of the server.
func answered(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonServiceUnavailable, metav1.StatusReasonInternalError, metav1.StatusReasonTooManyRequests:
		return false
	}
	return true
}

// forget drops the tokens of an ended pod, and all objects that were not read for idle.
func (o *objects) forget(uid types.UID, idle time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, obj := range o.cache {
		if time.Since(obj.used) > idle || key.kind == "token" && strings.HasPrefix(key.more, string(uid)+"/") {
			delete(o.cache, key)
		}
	}
}
