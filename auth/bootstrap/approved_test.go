// Tests of what is said of a request that is approved and not signed.

package bootstrap

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// unsigned has requests approved after a while, and never signed.
type unsigned struct {
	after time.Duration // negative means never
	made  *certificates.CertificateSigningRequest
}

func (u *unsigned) Create(_ context.Context, r *certificates.CertificateSigningRequest, _ metav1.CreateOptions) (*certificates.CertificateSigningRequest, error) {
	u.made = r.DeepCopy()
	if u.after == 0 {
		u.approve()
	}
	return u.made, nil
}

func (u *unsigned) approve() *certificates.CertificateSigningRequest {
	u.made = u.made.DeepCopy()
	u.made.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateApproved, Status: corev1.ConditionTrue}}
	return u.made
}

func (u *unsigned) Get(context.Context, string, metav1.GetOptions) (*certificates.CertificateSigningRequest, error) {
	return u.made, nil
}

func (u *unsigned) Watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	w := watch.NewRaceFreeFake()
	context.AfterFunc(ctx, w.Stop)
	if u.after > 0 {
		time.AfterFunc(u.after, func() { w.Modify(u.approve()) })
	}
	return w, nil
}

// TestApprovedIsTold: of a request that is approved and not signed it is said that the signer is
// waited for, and not that it is to be approved.
func TestApprovedIsTold(t *testing.T) {
	const approve, sign = "kubectl certificate approve node-csr-", "is approved, and its signer has not signed it"
	for name, tt := range map[string]struct {
		after time.Duration
		want  string
	}{"never approved": {-1, approve}, "approved at once": {0, sign}, "approved while it waits": {5 * time.Second, sign}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				r := &request{
					api: &unsigned{after: tt.after}, log: slog.New(slog.NewTextHandler(&log, nil)), kind: clientCertificate,
					node: "node-1", key: pkitest.NewKey(t), timeout: time.Minute,
				}
				_, err := r.certificate(t.Context())
				synctest.Wait()
				if err == nil || strings.Contains(err.Error(), approve) != (tt.want == approve) || !strings.Contains(err.Error(), "within 1m0s") {
					t.Errorf("got %v", err)
				}
				if got := log.String(); strings.Count(got, tt.want) != 1 || strings.Contains(got, approve) != (tt.want == approve) {
					t.Errorf("the log says\n%s", got)
				}
			})
		})
	}
}
