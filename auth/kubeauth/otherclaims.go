package kubeauth

// What a node may write to leases, CSINodes, volume claims, events and certificate requests.

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

func leaseName(_ context.Context, w attempt) error {
	name, err := nameOf(w)
	switch {
	case err != nil:
		return err
	case w.a.GetNamespace() != nodeLeases:
		return fmt.Errorf("can only access leases in the %q system namespace", nodeLeases)
	case name != w.node:
		return errors.New("can only access node lease with the same name as the requesting node")
	}
	return nil
}

func leaseHolder(w attempt, now, _ *coordinationv1.Lease) error {
	if h := now.Spec.HolderIdentity; h != nil && *h != "" && *h != w.node {
		return fmt.Errorf("node %q is not allowed to name %q as the holder of its lease", w.node, *h)
	}
	return nil
}

func leaseOwners(w attempt, now, before *coordinationv1.Lease) error {
	return ownerBut(w.node, now.OwnerReferences, before.OwnerReferences)
}

func leaseFinalizers(w attempt, now, before *coordinationv1.Lease) error {
	return finalizers(w.node, "Lease", now, before)
}

func csiNodeName(_ context.Context, w attempt) error {
	name, err := nameOf(w)
	if err != nil {
		return err
	}
	if name != w.node {
		return errors.New("can only access CSINode with the same name as the requesting node")
	}
	return nil
}

func csiOwners(w attempt, now, before *storagev1.CSINode) error {
	return ownerBut(w.node, now.OwnerReferences, before.OwnerReferences)
}

func csiFinalizers(w attempt, now, before *storagev1.CSINode) error {
	return finalizers(w.node, "CSINode", now, before)
}

// claimFields allows what kubelets report of a volume that they expand.
func claimFields(w attempt, now, before *corev1.PersistentVolumeClaim) error {
	now, before = now.DeepCopy(), before.DeepCopy()
	for _, c := range []*corev1.PersistentVolumeClaim{now, before} {
		c.ResourceVersion, c.ManagedFields = "", nil
		c.Status.Capacity, c.Status.Conditions, c.Status.AllocatedResourceStatuses = nil, nil, nil
	}
	if equality.Semantic.DeepEqual(now, before) {
		return nil
	}
	return fmt.Errorf("node %q is not allowed to update other fields of a claim", w.node)
}

// eventAbout allows events about the node and about pods that are bound to it or do not
// exist.
func eventAbout(ctx context.Context, w attempt) error {
	e, ok := w.a.GetObject().(*corev1.Event)
	if !ok {
		return unexpected(w.a.GetObject())
	}
	ref := &e.InvolvedObject
	if old, ok := w.a.GetOldObject().(*corev1.Event); ok {
		if was := &old.InvolvedObject; was.Kind != ref.Kind || was.Namespace != ref.Namespace || was.Name != ref.Name || was.UID != ref.UID {
			return fmt.Errorf("node %q is not allowed to turn an event to another object", w.node)
		}
	}
	switch ref.Kind {
	case "Node":
		if ref.Name == w.node {
			return nil
		}
	case "Pod":
		pod, err := w.objects.pod(ctx, ref.Namespace, ref.Name, w.node)
		switch {
		case apierrors.IsNotFound(err) || err == nil && pod.Spec.NodeName == w.node:
			return nil
		case err != nil:
			return lookup(err, "look up pod %s/%s", ref.Namespace, ref.Name)
		}
	}
	return fmt.Errorf("node %q is not allowed to record an event about %s %s/%s", w.node, ref.Kind, ref.Namespace, ref.Name)
}

// eventSource requires that a node is the source of its events, and does not change those
// of others.
func eventSource(w attempt, now, before *corev1.Event) error {
	for _, e := range []*corev1.Event{now, before} {
		if e == before && w.a.GetOperation() == admission.Create {
			continue
		}
		for _, by := range []string{e.Source.Host, e.ReportingInstance} {
			if by != "" && by != w.node {
				return fmt.Errorf("node %q is not allowed to record or change an event of %q", w.node, by)
			}
		}
		if unsigned(e) {
			return fmt.Errorf("node %q is not allowed to record or change an event of nobody", w.node)
		}
	}
	return nil
}

// unsigned says whether an event does not name who recorded it.
func unsigned(e *corev1.Event) bool { return e.Source.Host == "" && e.ReportingInstance == "" }

func eventMetadata(w attempt, now, before *corev1.Event) error {
	if !sameOwners(now.OwnerReferences, before.OwnerReferences) {
		return fmt.Errorf("node %q is not allowed to modify ownerReferences of an Event", w.node)
	}
	return finalizers(w.node, "Event", now, before)
}

// requestMetadata is also for joining machines.
func requestMetadata(w attempt, now, _ *certificatesv1.CertificateSigningRequest) error {
	if w.node == "" && !bootstrapper(w.a.GetUserInfo()) {
		return nil
	}
	if len(now.OwnerReferences) > 0 || len(now.Finalizers) > 0 {
		return errors.New("is not allowed to set finalizers or ownerReferences of a certificate request")
	}
	return nil
}

// requestSubject checks the subject of a new certificate request, for every user.
func requestSubject(_ context.Context, w attempt) error {
	csr, ok := w.a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return unexpected(w.a.GetObject())
	}
	subject, err := parseRequest(csr.Spec.Request)
	signer := csr.Spec.SignerName
	kubelet := signer == certificatesv1.KubeAPIServerClientKubeletSignerName || signer == certificatesv1.KubeletServingSignerName
	switch {
	case w.node != "" && kubelet:
		if err != nil {
			return fmt.Errorf("unable to parse csr: %w", err)
		}
		if want := nodeUserPrefix + w.node; subject.Subject.CommonName != want {
			return fmt.Errorf("can only create a node CSR with CN=%s", want)
		}
	case w.node != "":
		return fmt.Errorf("a node can only ask for certificates of %s and %s",
			certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName)
	case bootstrapper(w.a.GetUserInfo()):
		if signer != certificatesv1.KubeAPIServerClientKubeletSignerName {
			return fmt.Errorf("a bootstrap token can only ask for certificates of %s", certificatesv1.KubeAPIServerClientKubeletSignerName)
		}
	}
	if err == nil && signer == certificatesv1.KubeAPIServerClientSignerName &&
		slices.Contains(subject.Subject.Organization, user.SystemPrivilegedGroup) {
		return fmt.Errorf("use of %s signer with %s group is not allowed", signer, user.SystemPrivilegedGroup)
	}
	return nil
}

func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, fmt.Errorf("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}
