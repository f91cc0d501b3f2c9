package csr

// The approver: lets kubelets have the certificates they need.

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// workers is how many requests are decided about, and signed, at once. Each waits for the
// API four or five times, so that with fewer a fleet that joins waits for them.
const workers = 8

const (
	// permitFor is how long it is remembered that a user may have requests approved: many nodes
	// join with one token. A refusal is not remembered.
	permitFor = 2 * time.Second
	// maxPermits bounds how many users that is remembered of.
	maxPermits = 1024
)

// An Approver is the controller certificatesigningrequest-approving-controller.
type Approver struct {
	client   kubernetes.Interface
	names    *nodekeys.Book
	requests certificateslisters.CertificateSigningRequestLister
	reqInf   cache.SharedIndexInformer
	permits  *utilcache.LRUExpireCache // by user and kind of request
	server   *auth.ServerNames
	log      *slog.Logger
}

// ApproverConfig configures an Approver. The zero value is good.
type ApproverConfig struct {
	// Server are the names that no node gets; nil means those that every server has.
	Server *auth.ServerNames
}

// NewApprover returns an approver that watches through d.Informers.
func NewApprover(d loop.Deps, c ApproverConfig) (*Approver, error) {
	if c.Server == nil {
		c.Server = &auth.ServerNames{}
	}
	r := d.Informers.Certificates().V1().CertificateSigningRequests()
	a := &Approver{
		client: d.Client, names: nodekeys.NewBook(d.Client), requests: r.Lister(), reqInf: r.Informer(),
		permits: utilcache.NewLRUExpireCache(maxPermits), server: c.Server,
	}
	a.log = loop.Logger(d.Log, a.Name())
	return a, nil
}

// Name is the controller's name in Kubernetes.
func (*Approver) Name() string { return "certificatesigningrequest-approving-controller" }

// Run approves until ctx is done. The informers must be running.
func (a *Approver) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: a.Name(), Do: a.sync, Workers: workers, Log: a.log})
	stop, err := loop.Watch(a.reqInf, q.Add)
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

// sync decides about one request.
func (a *Approver) sync(ctx context.Context, name string) (time.Duration, error) {
	r, err := a.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if approved, no, broken := decided(r); approved || no || broken || len(r.Status.Certificate) > 0 {
		return 0, nil
	}
	if r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName &&
		r.Spec.SignerName != certificatesv1.KubeletServingSignerName {
		return 0, nil
	}
	req, err := parse(r)
	if err != nil {
		return 0, a.leave(r, err)
	}
	if r.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		return 0, a.serving(ctx, r, req)
	}
	return 0, a.kubelet(ctx, r, req)
}

// kubelet decides about a kubelet's client certificate.
func (a *Approver) kubelet(ctx context.Context, r *certificatesv1.CertificateSigningRequest, req *x509.CertificateRequest) error {
	node, err := kubeletClient(req, r.Spec.Usages)
	if err != nil {
		return a.leave(r, err)
	}
	if err = a.server.Check(node); err != nil {
		return a.deny(ctx, r, "ReservedName", err.Error())
	}
	renewal := r.Spec.Username == nodePrefix+node
	what, message := "nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."
	if renewal {
		what, message = "selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."
	}
	ok, err := a.allowed(ctx, r, what)
	if err != nil {
		return err
	}
	if !ok {
		return loop.Quiet(fmt.Errorf("%s may not create %s", r.Spec.Username, what))
	}
	why, err := enroll(ctx, a.names, r, node, keyOf(req))
	if err != nil {
		return err
	}
	if why != "" {
		return a.deny(ctx, r, "NodeNameHeld", why)
	}
	return a.approve(ctx, r, message)
}

// leave has a request wait for a person: it is not one that is known here.
func (a *Approver) leave(r *certificatesv1.CertificateSigningRequest, why error) error {
	ungranted.note(a.log, slog.LevelInfo, left, r, why.Error())
	return nil
}

// serving decides about a kubelet's serving certificate. One that names anything
// but the node waits for a person.
func (a *Approver) serving(ctx context.Context, r *certificatesv1.CertificateSigningRequest, req *x509.CertificateRequest) error {
	name, err := kubeletServing(req, r.Spec.Usages, r.Spec.Username)
	if err != nil {
		return a.leave(r, err)
	}
	if err = checkOwn(req, a.server); err != nil {
		return a.deny(ctx, r, "ReservedName", err.Error())
	}
	if !servesNode(req, name) {
		return a.leave(r, fmt.Errorf("it does not name exactly the node: names %q, addresses %v", req.DNSNames, req.IPAddresses))
	}
	return a.approve(ctx, r, "Auto approving kubelet serving certificate: it names exactly the node.")
}

// allowed asks whether who made the request may have it approved.
func (a *Approver) allowed(ctx context.Context, r *certificatesv1.CertificateSigningRequest, what string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range r.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	key := fmt.Sprintf("%q %q %q %q %q", what, r.Spec.Username, r.Spec.UID, r.Spec.Groups, r.Spec.Extra)
	if _, known := a.permits.Get(key); known {
		return true, nil
	}
	sar, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: r.Spec.Username, UID: r.Spec.UID, Groups: r.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: certificatesv1.GroupName, Version: "*",
				Resource: "certificatesigningrequests", Subresource: what, Verb: "create",
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask whether %s may create %s: %w", r.Spec.Username, what, err)
	}
	if sar.Status.Allowed {
		a.permits.Add(key, true, permitFor)
	}
	return sar.Status.Allowed, nil
}

func (a *Approver) approve(ctx context.Context, r *certificatesv1.CertificateSigningRequest, message string) error {
	a.log.Info("approve", "request", r.Name, "signer", r.Spec.SignerName, "requester", r.Spec.Username)
	return a.decide(ctx, r, certificatesv1.CertificateApproved, autoApproved, message)
}

func (a *Approver) deny(ctx context.Context, r *certificatesv1.CertificateSigningRequest, reason, message string) error {
	ungranted.note(a.log, slog.LevelWarn, denied, r, message)
	return a.decide(ctx, r, certificatesv1.CertificateDenied, reason, message)
}

func (a *Approver) decide(ctx context.Context, r *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType, reason, message string) error {
	r = r.DeepCopy()
	now := metav1.Now()
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message,
		LastUpdateTime: now, LastTransitionTime: now,
	})
	_, err := a.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, r, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update approval of %s: %w", r.Name, err)
	}
	return nil
}
